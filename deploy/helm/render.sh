#!/bin/sh
# Write the plain manifests of deploy/k8s: the chart with its default values. Needs helm.
set -eu
cd "$(dirname "$0")"
render() { # options, folder, names of templates
  for name in $3; do
    # shellcheck disable=SC2086
    helm template quire quire $1 --show-only "templates/$name.yaml" \
      | sed -e '/^# Source:/d; 1{/^---$/d}' -e '$a\' >"../k8s/$2/$name.yaml"
  done
}
render "" base "networkpolicy poddisruptionbudget service statefulset"
render "--set autoscaling.enabled=true" autoscaling "horizontalpodautoscaler podmonitor"
