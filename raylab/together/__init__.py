"""Joins the products: the pipeline, the comparison of runs, data frames, raylab's own speed.

Begin with `pipeline`: it trains models, scores them and judges the benchmark that they make.
"""
