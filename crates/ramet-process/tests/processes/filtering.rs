//! Filters kill at what they do not list, on all threads. What the list of a machine holds: tests/seccomp.rs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use ramet_process::seccomp::{InstallError, MachineFilter, MachineFilterSpec, machine_policy};
use ramet_process::signals::own_pidfd;
use ramet_process::{Exit, HostDescriptors, Namespaces, SeqPacket, inspect, wait_for};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, getpid};

use crate::confining::confine;
use crate::harness::{Case, fork_with_socket, recv_text, require_root, until_closed};

pub(crate) const CASES: &[Case] = &[
    ("filtered_machines_can_work", can_work),
    ("filtered_machines_die_of_what_is_forbidden", die_of_what_is_forbidden),
    ("a_filter_holds_for_all_threads", holds_for_all_threads),
    ("a_filter_is_refused_where_a_thread_has_another", refused_where_a_thread_has_another),
];

const ALLOWED_IOCTL: u32 = 0xae00; // KVM_GET_API_VERSION

fn filter() -> MachineFilter {
    let spec = MachineFilterSpec { own_pid: Pid::from_raw(1).unwrap(), ioctls: &[ALLOWED_IOCTL, 0xae80] };
    MachineFilter::build(&machine_policy(&spec)).unwrap()
}

/// A machine process with pid namespace, confinement and filter, which then runs `body`.
fn machine(body: impl FnOnce(&SeqPacket)) -> (ramet_process::Child, SeqPacket) {
    require_root();
    let host = HostDescriptors::open().unwrap();
    let zygote = own_pidfd().unwrap();
    let filter = filter();
    fork_with_socket(Namespaces { pid: true }, |socket| {
        confine(&host, &zygote, &[socket.as_fd()]);
        filter.install_on_all_threads().unwrap();
        body(socket);
    })
}

/// Everything that a monitor does at run time, with threads that were started before the filter.
fn can_work() {
    let host = HostDescriptors::open().unwrap();
    let zygote = own_pidfd().unwrap();
    let filter = filter();
    let (child, socket) = fork_with_socket(Namespaces { pid: true }, |socket| {
        let kvm = host.open_kvm().unwrap();
        confine(&host, &zygote, &[socket.as_fd(), kvm.as_fd()]);
        let (barrier, counter) = (Arc::new(Barrier::new(3)), Arc::new(Mutex::new(0)));
        let threads = [(); 2].map(|()| {
            let (barrier, counter) = (Arc::clone(&barrier), Arc::clone(&counter));
            std::thread::spawn(move || {
                barrier.wait();
                barrier.wait();
                for _ in 0..1000 {
                    *counter.lock().unwrap() += 1;
                    std::thread::yield_now();
                }
            })
        });
        // Started is a thread that runs its own code.
        barrier.wait();
        filter.install_on_all_threads().unwrap();
        barrier.wait();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*counter.lock().unwrap(), 2000);
        work(socket, &kvm);
        socket.send(b"done", &[]).unwrap();
    });
    let large = socket.recv(ramet_process::Limits::default()).unwrap();
    let ramet_process::Received::Message(large) = large else {
        panic!("the child {}", wait_for(&child.pidfd).unwrap());
    };
    assert!(large.bytes.len() == 200_000, "{}", String::from_utf8_lossy(&large.bytes));
    assert_eq!(large.descriptors.len(), 1);
    assert_eq!(recv_text(&socket), "done");
    assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Code(0));
}

fn work(socket: &SeqPacket, kvm: &OwnedFd) {
    use rustix::event::epoll;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&poll, &bell, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
    let mut events = Vec::with_capacity(4);
    assert_eq!(epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None).unwrap(), 1);
    socket.send(&vec![1; 200_000], &[bell.as_fd()]).unwrap();
    std::thread::sleep(Duration::from_millis(1));
    assert!(Instant::now().elapsed() < Duration::from_secs(60));
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
    // More than the heap has, and back: mmap, mremap, munmap.
    let mut block = vec![1u8; 8 << 20];
    block.resize(64 << 20, 2);
    drop(block);
    let panicked = std::panic::catch_unwind(|| {
        std::panic::set_hook(Box::new(|_| {}));
        panic!("deliberate")
    });
    assert!(panicked.is_err());
    assert_eq!(rustix::fs::fstat(kvm).unwrap().st_size, 0);
    let file = std::fs::File::from(kvm.try_clone().unwrap());
    assert!(!file.metadata().unwrap().is_file());
    assert_eq!(kvm_api_version(kvm), 12);
}

#[allow(unsafe_code)]
fn kvm_api_version(kvm: &OwnedFd) -> i32 {
    use std::os::fd::AsRawFd;
    // SAFETY: the request takes no pointer.
    unsafe { libc::ioctl(kvm.as_raw_fd(), u64::from(ALLOWED_IOCTL), 0) }
}

#[allow(unsafe_code)]
fn map_executable() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: a new mapping at an address that the kernel chooses.
    let _ = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE) };
}

fn die_of_what_is_forbidden() {
    use rustix::process::{Signal, kill_process};
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
    const NONE: CapabilitySet = CapabilitySet::empty();
    let forbidden: [(&str, fn()); 10] = [
        ("openat", || drop(std::fs::File::open("/"))),
        ("socketpair", || drop(std::os::unix::net::UnixStream::pair())),
        ("socket", || drop(std::net::UdpSocket::bind("127.0.0.1:0"))),
        ("clone for a thread", || drop(std::thread::Builder::new().spawn(|| ()))),
        ("clone for a program", || drop(std::process::Command::new("/bin/true").spawn())),
        ("kill", || kill_process(getpid(), Signal::TERM).unwrap()),
        ("mmap PROT_EXEC", map_executable),
        ("ioctl TIOCGWINSZ", || assert!(rustix::termios::tcgetwinsize(std::io::stdin()).is_ok())),
        ("prctl", || set_no_new_privs(true).unwrap()),
        ("capset", || {
            set_capabilities(None, CapabilitySets { effective: NONE, permitted: NONE, inheritable: NONE }).unwrap();
        }),
    ];
    for (name, act) in forbidden {
        let (child, socket) = machine(|socket| {
            act();
            socket.send(b"survived", &[]).unwrap();
        });
        assert_eq!(recv_text(&socket), "", "{name}");
        let exit = wait_for(&child.pidfd).unwrap();
        assert!(exit.is_filter_violation(), "{name}: it {exit}");
    }
}

fn holds_for_all_threads() {
    require_root();
    let host = HostDescriptors::open().unwrap();
    let zygote = own_pidfd().unwrap();
    let filter = filter();
    let (child, socket) = fork_with_socket(Namespaces { pid: true }, |socket| {
        confine(&host, &zygote, &[socket.as_fd()]);
        let stop = Arc::new(AtomicBool::new(false));
        let started = Arc::new(Barrier::new(4));
        for _ in 0..3 {
            let (stop, started) = (Arc::clone(&stop), Arc::clone(&started));
            std::thread::spawn(move || {
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // The filter ends the process here: there is no result.
                let _ = std::fs::File::open("/");
            });
        }
        started.wait();
        filter.install_on_all_threads().unwrap();
        socket.send(b"filtered", &[]).unwrap();
        // Only a signal to go on: whether it is a message or the other side's end.
        let _ = socket.recv(ramet_process::Limits::default());
        stop.store(true, Ordering::Relaxed);
        until_closed(socket);
    });
    assert_eq!(recv_text(&socket), "filtered");
    let status = inspect::status(child.pid).unwrap();
    assert_eq!((status.threads, status.seccomp, status.seccomp_filters), (4, 2, Some(1)));
    for task in std::fs::read_dir(format!("/proc/{}/task", child.pid)).unwrap() {
        let text = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert_eq!(inspect::parse_status(&text).unwrap().seccomp, 2);
    }
    socket.send(b"break the rules", &[]).unwrap();
    assert!(wait_for(&child.pidfd).unwrap().is_filter_violation());
}

fn refused_where_a_thread_has_another() {
    let filter = filter();
    let (send, recv) = std::sync::mpsc::channel();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let own = seccompiler::BpfProgram::from([seccompiler::sock_filter { code: 6, jt: 0, jf: 0, k: 0x7fff_0000 }]);
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&own).unwrap();
        send.send(()).unwrap();
        // Ends with the sender.
        let _ = wait.recv();
    });
    recv.recv().unwrap();
    assert!(matches!(filter.install_on_all_threads(), Err(InstallError::ThreadDiffers(_))));
    std::fs::File::open("/dev/null").expect("no thread has the filter");
    drop(done);
    thread.join().unwrap();
}
