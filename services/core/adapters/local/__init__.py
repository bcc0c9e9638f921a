"""The ``local`` cluster: this machine, through its node agent."""
