"""What helps whoever runs a service that seems to stand still: task dumps and the stall watchdog.

tasks      what every task and thread waits for, as text
watching   writes that text on SIGUSR1, and by itself when a service makes no progress
"""
