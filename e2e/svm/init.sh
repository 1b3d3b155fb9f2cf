#!/bin/busybox sh
# The first process of the AMD host (see run.sh): makes it an ordinary one, runs /command, reports its status on the
# second serial port and switches off.
set -u
bb=/bin/busybox

if [ -z "${RAMET_MOVED:-}" ]; then
  # Off the initramfs: it is the one root that pivot_root and mount namespaces treat in a way of their own.
  $bb mkdir /new
  $bb mount -t tmpfs -o mode=755 root /new
  $bb cp -a /bin /dev /etc /init /modules /payload /proc /run /sys /tmp /command /new/
  for folder in /lib /lib64 /usr; do [ ! -e $folder ] || $bb cp -a $folder /new/; done
  exec $bb env RAMET_MOVED=1 $bb switch_root /new /init
fi

$bb --install -s /bin 2>/dev/null
export PATH=/bin:/payload HOME=/tmp TMPDIR=/tmp RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
for link in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
  ln -sf "${link#*:}" "/dev/${link%%:*}"
done
hostname svm-host
ifconfig lo up
stty -F /dev/ttyS1 -opost
for module in /modules/*.ko; do insmod "$module" || echo "svm host: could not load $module"; done
ulimit -n 65536

cd /payload
setsid sh -c 'exec sh /command' </dev/null
echo "exit $?" >/dev/ttyS1
sync
poweroff -f
