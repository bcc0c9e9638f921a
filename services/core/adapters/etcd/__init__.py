"""The status store on etcd, by the messages and stubs of etcd3, and the start of a local etcd."""
