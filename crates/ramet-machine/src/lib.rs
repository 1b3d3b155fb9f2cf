//! The only assembler: builds a machine from a plan, runs it, saves it
