"""What the arena and the auditor know of the cluster whose learners attack: a class for each kind, the same questions.

``one_machine``: learners are processes of this machine. ``pods``: learners are pods of the test bed's Kubernetes.
"""
