"""The ``local`` cluster: this machine, by its node agent."""
