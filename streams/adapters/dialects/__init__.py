"""Pure translators, one wire format a file: a request into a `Call`, pieces into an answer."""
