"""`tune`: the best candidates of a design space, built, timed, verified and remembered."""
