"""What the bytes say: cut a request body into messages and splice replacements in; read replies. No policy.

One module knows each API's shape; the rooms below see only the neutral values of `messages`.
"""
