"""Scripts and files of settings as text: followed, read and changed in place; nothing is executed.

Reading order: `shell_tree` (a script as a tree of commands), `shell_words` (what its words become),
`shell` (commands, as far as the text says them for certain); `python_text` (Python), `edit_json`,
`edit_toml`, `edit_yaml`, `edit_python` (a text with some settings changed).
"""
