"""The status store on etcd, spoken with etcd3's own messages and stubs, and the start of a local etcd."""
