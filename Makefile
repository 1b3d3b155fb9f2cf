# The two commands of the README. Everything else is a cargo alias: see CONTRIBUTING.md.
.PHONY: help demo test

help:
	@echo "make demo   boot a machine, fork it live 100 times, show what each clone answers and what it cost"
	@echo "make test   every check and every test (cargo xtask ci)"

# Needs no package: the guest is embedded in the program, which is built here.
demo:
	@echo "Building Ramet in release mode (about 3 minutes on two cores the first time), then running the demo: it boots"
	@echo "a machine, forks it live 100 times and shows the clones (a few seconds). Needs read and write access to /dev/kvm."
	cargo run --release --package ramet -- demo

test:
	@echo "Checking and testing everything: about 10 minutes on two cores the first time. Needs /dev/kvm, and for the"
	@echo "emulated AMD host the packages qemu-system-x86 busybox-static cpio xz-utils (bash .ci/run installs them)."
	cargo run --quiet --package xtask -- ci
