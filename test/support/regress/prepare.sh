#!/usr/bin/env bash
# Puts PostgreSQL's regression suite and its compiled regress.so into a folder: sql, expected, data and
# schedules of Debian's source package of postgresql-15, whose licence is PostgreSQL's. Nothing of it is
# kept in the repository. Needs root, for the packages that compile and for the `deb-src` entry.
set -euo pipefail
folder=${1:?usage: prepare.sh <folder>}
[ ! -e "$folder/regress.so" ] || exit 0
export DEBIAN_FRONTEND=noninteractive
missing=()
for package in postgresql-server-dev-15 dpkg-dev gcc libc6-dev; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
sources=/etc/apt/sources.list.d/pgfleet-test-sources.sources
if [ ! -e "$sources" ]; then
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  printf '%s\n' 'Types: deb-src' 'URIs: http://deb.debian.org/debian' "Suites: $codename" \
    'Components: main' 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >"$sources"
fi
apt-get -o Acquire::Retries=3 update -qq
[ "${#missing[@]}" = 0 ] || apt-get install -y -qq --no-install-recommends "${missing[@]}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
(cd "$work" && apt-get -o APT::Sandbox::User=root source --download-only -qq -t "$codename" postgresql-15/"$codename")
tar xjf "$work"/postgresql-15_*.orig.tar.bz2 -C "$work"
mkdir -p "$folder"
suite=$(echo "$work"/postgresql-15*/src/test/regress)
cp -R "$suite"/{sql,expected,data,parallel_schedule,resultmap} "$folder/"
cc -O1 -fPIC -shared -I "$(/usr/lib/postgresql/15/bin/pg_config --includedir-server)" \
  -o "$work/regress.so" "$suite/regress.c"
cp "$work/regress.so" "$folder/regress.so"
