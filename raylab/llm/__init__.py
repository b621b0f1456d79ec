"""Asks OpenAI-compatible chat endpoints, and knows nothing of annotators.

`config` and `endpoints` say which models there are, `chat` what a request and its reply are,
`client` answers from the journal or an endpoint, `batches` asks for many calls at half the price,
`wire` is the format, `connection` and `limits` the pace, `prices` the cost, and `embedded` a model
for tests. Begin with `client`: one call, from the journal to the reply.
"""
