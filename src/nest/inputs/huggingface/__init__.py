"""A `config.json` of Hugging Face as a model.

`config` is the entry; `fields` reads single fields; `alike`, `renamed`, `mixed` and `images` have
a reader for each model type, `windows` the windows of attention, and `keys` those keys that cost
nothing.
"""
