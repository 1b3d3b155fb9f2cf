//! Processes and descriptors: clone3, namespaces, seccomp, SCM_RIGHTS, signals
