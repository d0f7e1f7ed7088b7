"""Files of networks, a module for each format; `format` chooses the module.

`entries` checks what all formats have in common; `xml_text` reads XML within limits.
"""
