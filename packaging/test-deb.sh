#!/bin/sh
# Installs a package of GUPFS on this machine, mounts through mount(8) and a line of fstab, removes it, and looks that
# nothing is left. As root; refuses where the package is installed already.
set -eu
package=$1
fail() { echo "test-deb: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "needs root"
if dpkg-query -W -f '${Status}' gupfs 2>/dev/null | grep -q installed; then
    fail "gupfs is installed here: not touched"
fi
work=$(mktemp -d /tmp/gupfs-deb-XXXXXX)
mkdir "$work/mnt"
state=$work/state
clean() {
    if [ -x /usr/bin/gupfs ] && [ -d "$state" ]; then
        timeout -k 5 90 gupfs down --destroy --state "$state" >/dev/null 2>&1 || true
    fi
    dpkg -P gupfs >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean EXIT

dpkg -i "$package" >/dev/null
dpkg -L gupfs | sort > "$work/files"
for file in /usr/bin/gupfs /usr/sbin/mount.fuse.gupfs /usr/sbin/umount.fuse.gupfs \
    /usr/lib/systemd/system/gupfs@.service /usr/share/man/man1/gupfs.1.gz \
    /usr/share/man/man1/gupfs-mount.1.gz /usr/share/bash-completion/completions/gupfs; do
    [ -e "$file" ] || fail "$file is missing"
done
gupfs --version
gzip -dc /usr/share/man/man1/gupfs-mount.1.gz | grep -q fstab || fail "the man page of gupfs mount is empty"
bash -c '. /usr/share/bash-completion/completions/gupfs && complete -p gupfs' >/dev/null || fail "no completion"
if command -v systemd-analyze >/dev/null; then
    systemd-analyze verify gupfs@test.service 2>"$work/verify" || true
    if grep -i gupfs "$work/verify"; then fail "systemd does not like the unit"; fi
fi

gupfs up --mount "$work/mnt" --state "$state" --size 1G >/dev/null
gupfs umount "$work/mnt" >/dev/null
echo "$state $work/mnt fuse.gupfs _netdev,nofail,nosuid,x-systemd.automount,pagepool_size=64M 0 0" > "$work/fstab"
timeout -k 5 90 mount -T "$work/fstab" -a
grep -q "^$state $work/mnt fuse.gupfs [^ ]*nosuid" /proc/self/mounts || fail "it is not mounted as fstab says"
echo kept > "$work/mnt/file"
timeout -k 5 90 umount "$work/mnt"
grep -q " $work/mnt " /proc/self/mounts && fail "it is still mounted"
timeout -k 5 90 mount -t fuse.gupfs -o ro "$state" "$work/mnt"
[ "$(cat "$work/mnt/file")" = kept ] || fail "what was written is not there"
if (echo x > "$work/mnt/new") 2>/dev/null; then fail "it is not read-only"; fi
timeout -k 5 90 umount "$work/mnt"
[ ! -e "$state/control.sock" ] || fail "umount has not waited for the end of the daemon"
timeout -k 5 90 gupfs down --destroy --state "$state" >/dev/null

dpkg -r gupfs >/dev/null
while read -r file; do
    if [ -f "$file" ] || [ -L "$file" ]; then fail "$file is left"; fi
done < "$work/files"
dpkg -P gupfs >/dev/null 2>&1 || true
echo "test-deb: installed, used and removed"
