#!/bin/sh
# Fetches the newest PgBouncer of Debian with the libraries that it needs into a folder, beside the
# installed one and without installing anything, and prints the command to set PGBOUNCER to:
#
#   PGBOUNCER=$(test/support/newer-pgbouncer.sh /opt/pgbouncer) npm test -- conformance
set -eu
folder=${1:?usage: newer-pgbouncer.sh <folder>}
mirror=${MIRROR:-http://deb.debian.org/debian}
suite=${SUITE:-sid}
arch=$(dpkg --print-architecture)
libraries=$(dpkg-architecture -q DEB_HOST_MULTIARCH 2>/dev/null || echo "$(uname -m)-linux-gnu")
mkdir -p "$folder"
list=$(mktemp)
trap 'rm -f "$list" "$list.deb"' EXIT
curl -sf "$mirror/dists/$suite/main/binary-$arch/Packages.xz" | xz -dc >"$list"
for package in pgbouncer libc6 libevent-2.1-7t64 libssl3t64 libcares2 libpam0g libsystemd0 libldap2 \
  libsasl2-2 libaudit1 libcap-ng0 libcap2 libgcrypt20 libgpg-error0 liblzma5 libzstd1 liblz4-1 zlib1g \
  libcrypt1; do
  file=$(awk -v RS= -v name="$package" '$0 ~ "(^|\n)Package: " name "\n"' "$list" |
    sed -n 's/^Filename: //p' | head -n 1)
  [ -n "$file" ] || { echo "$package is not in $suite" >&2; exit 1; }
  curl -sf "$mirror/$file" -o "$list.deb"
  dpkg-deb -x "$list.deb" "$folder/root"
done
root=$(cd "$folder" && pwd)/root
cat >"$folder/pgbouncer" <<END
#!/bin/sh
libraries=$root/usr/lib/$libraries
exec "\$libraries"/ld-linux-*.so.* --library-path "\$libraries" $root/usr/sbin/pgbouncer "\$@"
END
chmod 755 "$folder/pgbouncer"
"$folder/pgbouncer" --version >&2
echo "$root/../pgbouncer" | sed 's#/root/\.\.##'
