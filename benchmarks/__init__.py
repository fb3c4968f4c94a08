"""Measurements that anybody can repeat: what is fast, beside what, and at what price."""
