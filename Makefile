# The two commands of the README. Everything else is a cargo alias: see CONTRIBUTING.md.
.PHONY: help demo test

help:
	@echo "make demo   boot a machine, fork it live 100 times, show what each clone answers and what it cost"
	@echo "make test   every check and every test (cargo xtask ci)"

# Needs no package: the guest is embedded in the program, which is built here.
demo:
	@echo "Building Ramet in release mode (about 3 minutes on two cores the first time), then running the demo: it boots"
	@echo "a machine, forks it live 100 times and shows the clones (a few seconds). Needs read and write access to /dev/kvm."
	@for tool in cargo cc; do command -v $$tool >/dev/null || { echo "$$tool is missing. Install Rust 1.88 or newer" \
	  "(https://rustup.rs) and a C linker (apt-get install gcc libc6-dev)."; exit 1; }; done
	cargo run --release --package ramet -- demo

test:
	@echo "Checking and testing everything: about 10 minutes on two cores the first time. Needs /dev/kvm. Packages that"
	@echo "are missing are installed first (.ci/packages): for the emulated AMD host a QEMU and a static busybox."
	.ci/packages
	cargo run --quiet --package xtask -- ci
