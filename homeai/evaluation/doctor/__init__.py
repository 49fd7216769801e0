"""`homeai doctor`: what is wrong, how that is known, and what to change by how much.

`gather` looks at the daemon, its ledger and the machine, once; each of `checks` judges those facts and nothing else.
"""
