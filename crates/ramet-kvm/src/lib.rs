//! Ordered creation of virtual machines, vCPU state classes, host probes
