"""The Cluster port on Kubernetes: learners are pods in their tenant's namespace (docs/adr/0019-learners-as-pods.md).

api         requests to the API server, and its errors in terms of the domain
names       names, labels and annotations of all objects
objects     the objects of an attempt beside its pods, rendered by pure functions
pods        the pods of learners and the patches that activate them, rendered by pure functions
pod_rules   the form of every pod, checked before it is created
manifests   service accounts, rights and admission policies that the operator gives to the cluster
tenants     the namespace of a tenant
reasons     why pods do not start or have ended, with advice
observed    a pod and its helper's report -> LearnerProcess
observation_cache  the last observation of each job, until something of it changes
nodes       nodes and foreign pods -> capacity
fences      the highest (attempt, term) of each job, and stops, in the status store
reflector   one list+watch loop for many objects
gangs       what the cluster offers to start all pods or none
provision   the steps of an attempt
probe       a pod that tries the cluster before the first job
removal     stop and teardown
cluster     the port
"""
