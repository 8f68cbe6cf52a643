"""The languages of expressions and scripts, each behind the protocol `compiled.Compiled`."""
