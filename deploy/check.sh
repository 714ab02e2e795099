#!/bin/sh
# Check the files of this folder with the validators of the programs that read them:
# nginx, caddy, promtool, systemd-analyze, hadolint, helm, kubectl and docker compose must be installed.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd prometheus && promtool check config --syntax-only prometheus.yml \
  && promtool check rules quire.rules.yml && promtool test rules rules_test.yml)

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=llm.example.com \
  -keyout "$work/key.pem" -out "$work/certificate.pem" 2>/dev/null
sed -e "s|/etc/ssl/certs/llm.example.com.pem|$work/certificate.pem|" \
    -e "s|/etc/ssl/private/llm.example.com.key|$work/key.pem|" proxy/nginx.conf >"$work/quire.conf"
printf 'pid %s/pid;\nevents {}\nhttp { include %s/quire.conf; }\n' "$work" "$work" >"$work/nginx.conf"
nginx -q -t -e stderr -c "$work/nginx.conf" && echo "nginx.conf: valid"

caddy validate --adapter caddyfile --config proxy/Caddyfile 2>&1 | grep "Valid configuration"

# The unit names a command that is installed on the machine of the service.
sed "s|/opt/quire/bin/quire|/bin/true|" systemd/quire.service >"$work/quire.service"
systemd-analyze verify "$work/quire.service" && echo "quire.service: valid"

hadolint docker/Dockerfile && echo "Dockerfile: valid"

QUIRE_KEY_GROUP=1 docker compose -f docker/compose.yml config --quiet && echo "compose.yml: valid"

helm lint --strict --quiet helm/quire && helm/render.sh && git diff --exit-code --stat -- k8s
for one in base autoscaling; do kubectl kustomize "k8s/$one" >/dev/null && echo "k8s/$one: valid"; done
