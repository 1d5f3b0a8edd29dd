"""The command line, and the processes it starts and looks after on this machine."""
