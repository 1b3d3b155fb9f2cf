#!/bin/bash
# Runs a command on an ordinary AMD KVM host, on any machine: Debian's stock cloud kernel with kvm-amd (SVM, nested
# paging), itself a guest of QEMU's TCG. Behaviour there is that of the real driver; absolute times mean nothing.
#
#   run.sh [-k PACKAGE] [-m MIB] [-c CPUS] [-t SECONDS] [-b PROGRAM]... [-f FILE]... COMMAND
#
#   -b PROGRAM   goes to /payload there, without debug information, together with the shared libraries that it needs
#   -f FILE      goes to /payload as it is; a folder with all that is in it
#   -k PACKAGE   the kernel's package (default: the 6.12 cloud kernel; linux-image-cloud-amd64 is 6.1 on Debian 12)
#   COMMAND      is run by a busybox shell in /payload, as root; its output is this script's output
#
# The exit status is COMMAND's; 124 when SECONDS (default 300) are over, 125 when that host did not come up or died.
# Needs qemu-system-x86, busybox-static, cpio, xz-utils; the network only for the kernel's package, once: it is kept
# in $RAMET_CACHE (default: ramet in the user's cache folder).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kernel_package=linux-image-6.12-cloud-amd64 memory_mib=3072 cpus=1 limit_s=300 programs=() files=()

usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
say() { echo "svm host: $*" >&2; }
fail() { say "$*"; exit 125; }

while getopts k:m:c:t:b:f: option; do
  case $option in
    k) kernel_package=$OPTARG ;;
    m) memory_mib=$OPTARG ;;
    c) cpus=$OPTARG ;;
    t) limit_s=$OPTARG ;;
    b) programs+=("$OPTARG") ;;
    f) files+=("$OPTARG") ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# = 1 ] || usage
command=$1

require() {
  local missing=()
  for pair in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio xz:xz-utils dpkg-deb:dpkg apt-get:apt; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
  done
  [ ${#missing[@]} = 0 ] || fail "missing; install with: apt-get install ${missing[*]}"
}

# Prints the folder that the kernel's package is unpacked in, and unpacks it there first where it is not yet.
kernel_folder() {
  local folder=${RAMET_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ramet}/$kernel_package
  if [ ! -d "$folder" ]; then
    local package fresh
    package=$(apt-cache depends "$kernel_package" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
    [ -n "$package" ] || fail "apt does not know $kernel_package: run apt-get update, or choose another with -k"
    say "fetching $package (35 MB, once)"
    mkdir -p "$(dirname "$folder")"
    fresh=$(mktemp -d "$folder.XXXXXX")
    (cd "$fresh" && apt-get -qq download "$package" 2>"$fresh/errors" && dpkg-deb -x ./*.deb . && rm -f ./*.deb errors) ||
      { cat "$fresh/errors" >&2; rm -rf "$fresh"; fail "could not fetch $package"; }
    # Another run may have been faster: its result is as good.
    mv -T "$fresh" "$folder" 2>/dev/null || rm -rf "$fresh"
  fi
  echo "$folder"
}

# Copies the modules that KVM on AMD and TAP devices need, unpacked, in the order in which they must be loaded. One
# that this kernel has built in is not there to copy.
copy_modules() {
  local kernel=$1 to=$2 number=0 name file
  mkdir -p "$to"
  for name in irqbypass ccp kvm kvm-amd tun; do
    file=$(find "$kernel/lib/modules" "$kernel/usr/lib/modules" -name "$name.ko*" -print -quit 2>/dev/null || true)
    number=$((number + 1))
    case $file in
      '') ;;
      *.xz) xz -dc "$file" >"$to/$number-$name.ko" ;;
      *.zst) zstd -qdc "$file" >"$to/$number-$name.ko" ;;
      *) cp "$file" "$to/$number-$name.ko" ;;
    esac
  done
}

# Copies a program's shared libraries and its loader to the same paths below the new root: a second, static build of
# everything would cost minutes.
copy_libraries() {
  local program=$1 root=$2 library
  # For a static program ldd fails and prints no path.
  for library in $(ldd "$program" 2>/dev/null | sed -n 's/^[^/]*\(\/[^ ]*\) (.*/\1/p'); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
  done
}

# Lays the new root out: everything that the host has on its disk, which is memory.
lay_out() {
  local kernel=$1 root=$2 program
  mkdir -p "$root"/{bin,dev,etc,payload,proc,run,sys,tmp}
  cp "$(command -v busybox)" "$root/bin/busybox"
  ldd "$root/bin/busybox" >/dev/null 2>&1 && fail "busybox is not static: apt-get install busybox-static"
  ln -s busybox "$root/bin/sh"
  cp "$here/init.sh" "$root/init"
  chmod 755 "$root/init"
  printf 'root:x:0:0::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
  copy_modules "$kernel" "$root/modules"
  for program in "${programs[@]}"; do
    strip --strip-debug -o "$root/payload/${program##*/}" "$program" 2>/dev/null || cp "$program" "$root/payload/"
    copy_libraries "$program" "$root"
  done
  [ ${#files[@]} = 0 ] || cp -a "${files[@]}" "$root/payload/"
  printf '%s\n' "$command" >"$root/command"
}

require
kernel=$(kernel_folder)
image=$(find "$kernel/boot" -name 'vmlinuz-*' -print -quit)
[ -n "$image" ] || fail "no kernel in $kernel: remove that folder to fetch it again"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
lay_out "$kernel" "$scratch/root"
(cd "$scratch/root" && find . | cpio --quiet -o -H newc >"$scratch/initramfs")
: >"$scratch/status"
say "booting $(basename "$image" | sed s/vmlinuz-//) with $cpus CPUs, $memory_mib MiB; limit $limit_s s"

# One thread for all CPUs: with a thread each, TCG now and then lets one CPU run an instruction that another is just
# patching (the int3 of jump labels, which creating a machine flips), and the host panics.
# Its clock counts instructions (2 ns each) and leaps while nothing runs: how busy this machine is makes no test there
# fail, and timers are served by that one thread. Served by another, which is QEMU's default, an interrupt is lost once
# in some hundred thousand VMRUNs: both set bits of the same word without a lock, and the host stands still for seconds.
# The second serial port carries nothing but the exit status, so that no output can be taken for it.
set +e
timeout -k 5 "$limit_s" qemu-system-x86_64 -accel tcg,thread=single -icount shift=1,sleep=off \
  -machine pc -nodefaults -no-reboot -display none \
  -cpu EPYC,+svm,+npt -smp "$cpus" -m "$memory_mib" -kernel "$image" -initrd "$scratch/initramfs" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off" \
  -serial stdio -serial "file:$scratch/status" </dev/null 2>"$scratch/errors" | stdbuf -oL tr -d '\r'
qemu=${PIPESTATUS[0]}
set -e
status=$(tr -d '\r' <"$scratch/status" | sed -n 's/^exit \([0-9]\{1,3\}\)$/\1/p' | tail -n 1)
[ -z "$status" ] || exit "$status"
[ "$qemu" != 124 ] && [ "$qemu" != 137 ] || { say "not finished after $limit_s s"; exit 124; }
grep -v "TCG doesn't support requested feature" "$scratch/errors" >&2 || true
fail "ended without an exit status (qemu: $qemu)"
