"""Labels texts with several language models, by a codebook, and with people.

`input` reads cases, `codebooks` and `opt` say what a label is, `protocol` decides a case, `archive`
keeps every paid call, `review` is the page where people decide, `judgement` says what their
decisions mean together, `statistics` measures agreement, `conclusions` corrects what is counted
from labels, `pages` reports, and `on_ray` spreads the work. Begin with `protocol.protocol`: one
case, from the first call to its decision.
"""
