"""The demo: eight questions, a scripted provider, the real proxy between them. Nothing else imports this package.

What may live here: the small corpus and its search, the script, the loop of an agent, and the table that shows what
happened. The proxy is used as anyone uses it, as a command and over HTTP; no file here reaches into its rooms.
"""
