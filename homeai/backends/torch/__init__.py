"""A backend on torch and safetensors: models as `transformers` defines them, attention and KV cache our own.

`load.load` is all that others need. Nothing outside this package imports torch, and this package is only imported
where a model is to be run on it.
"""
