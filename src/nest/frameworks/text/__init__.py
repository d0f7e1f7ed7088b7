"""Scripts and files of settings as text: followed, read and changed in place; nothing is executed.

Reading order: `shell_tree` and `shell_reader` (a script as a tree of commands, its variables at one
point), `arithmetic`, `shell_words` and `conditions` (numbers, words and tests), `shell_flow` (which
statements are run), `shell` (commands, followed as text); `python_text` (Python), `edit_json`,
`edit_toml`, `edit_yaml`, `edit_python` (a text with some settings changed).
"""
