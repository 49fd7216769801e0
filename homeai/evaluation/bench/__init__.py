"""`homeai bench`: a trace is played to a server, what came of it is measured, and a verdict says what to change.

`trace` and `groups` say what is asked, `client` asks it, `score` measures, `conditions` says what may be compared,
`verdict` decides; all of these are pure but `client`. `run` puts them in order, `store` keeps what came of it.
"""
