#!/bin/sh
# Turns fresh network, mount, host name, process and IPC namespaces into a host. Runs as root below its process 1.
#   boot.sh NAME FOLDER STATE CHECKOUT: FOLDER holds what outlives the power, STATE and CHECKOUT must not be seen
set -eu
name=$1 folder=$2 state=$3 checkout=$4

# What all hosts see of this machine, none of them may change.
while read -r _ _ _ _ target _; do
    # Network namespaces of other fleets come and go; /run is emptied below anyway.
    case $target in /proc | /proc/* | /sys | /sys/* | /dev | /dev/* | /run/netns/*) continue ;; esac
    mount -o remount,bind,ro "$target"
done < /proc/self/mountinfo

echo "$name" > /proc/sys/kernel/hostname
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id
for own in etc home root var/tmp var/log; do
    mount --bind "$folder/$own" "/$own"
    mount -o remount,bind,rw "/$own" # a bind of what is read-only is read-only too
done
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys # else it shows another host's network cards
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup  # rootless podman wants to be able to write here
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 /run/sshd
mkdir -m 1777 /run/lock
for hidden in "$state" "$checkout"; do
    if [ -d "$hidden" ]; then mount -t tmpfs -o ro,mode=755 tmpfs "$hidden"; fi
done
mount --make-rshared / # rootless podman again

touch /run/booted
exec sleep infinity
