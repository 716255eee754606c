"""The admin port: live settings, step statistics and health of a running engine, over HTTP."""
