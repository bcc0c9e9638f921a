"""The Cluster port on Kubernetes: learners are pods in their tenant's namespace (docs/adr/0019-learners-as-pods.md).

cluster            the port
options            what the operator sets

requests:
api                requests to the API server, and its errors in terms of the domain
slots              how many requests at a time, and which is the next
reflector          one list+watch loop for many objects
changes            which jobs a watch has news of, a burst of changes as one

rendering, by pure functions:
names              names, labels and annotations of all objects
objects            the objects of an attempt beside its pods
pods               the pods of learners and the patches that activate them
pod_rules          the form of every pod, checked before it is created
manifests          service accounts, rights and admission policies that the operator gives to the cluster

writing:
tenants            the namespace of a tenant
entry_scripts      the script that runs learners' commands, once for each tenant
fences             the highest (attempt, term) of each job, in the status store
gangs              what the cluster offers to start all pods or none
provision          the steps of an attempt
removal            stop and teardown
guardian_jobs      a Kubernetes Job for each Guardian
probe              a pod that tries the cluster before the first job

reading:
places             which namespace a job is in, and which jobs have objects
nodes              nodes and foreign pods -> capacity
reasons            why pods do not start or have ended, with advice
observed           a pod and its helper's report -> LearnerProcess
observation_cache  the last observation of each job, until something of it changes
"""
