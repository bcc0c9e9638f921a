"""The local cluster: the node agent, and the shim that is each learner's parent."""
