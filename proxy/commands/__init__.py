"""What a person runs beside the server, one file for each command. `proxy.cli` names them."""
