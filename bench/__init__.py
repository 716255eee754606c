"""Measured experiments against a running engine: workloads, client, statistics, audits and reports."""
