//! The process of one machine: its command queue, confinement and the zygote that bears it
