"""The vocabulary of the tests: a scripted provider, a running proxy, and a client that shows every byte.

A test reads like the conversation that it is about: this request arrives, this goes upstream, this comes back.
"""
