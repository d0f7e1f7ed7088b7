"""A `config.json` of Hugging Face as a model.

`config` is the entry; families.yaml says what each field is read from, `fields` reads it, `rules`
has what the table cannot express; `mixed`, `sparse` and `images` read model types of several kinds
of layers.
"""
