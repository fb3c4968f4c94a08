"""The outermost room: commands, printing, exit codes. It wires the others and decides nothing."""
