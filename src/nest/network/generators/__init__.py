"""Networks by rule, from sizes and figures.

`fabric` is their base, `switched`, `direct` and `composed` are the networks, `text` reads the names
and fields of the command line.
"""
