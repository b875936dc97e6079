# Joins this node to its OKE cluster. Written by gpuops.rdma; it also logs to the serial console.
# Follows files/oke-ubuntu-cloud-init.sh of oracle-quickstart/oci-hpc-oke (61d210a).
say() { echo "gpuops-join: $*" | tee /dev/console; }
imds=http://169.254.169.254/opc/v2
for _ in $(seq 150); do
  curl -fsSL -H 'Authorization: Bearer Oracle' $imds/identity/cert.pem | grep -q 'BEGIN CERTIFICATE' && break
  sleep 2
done
mkdir -p /etc/crio/crio.conf.d
printf '[crio.runtime]\ndefault_ulimits = ["memlock=-1:-1"]\n' > /etc/crio/crio.conf.d/12-memlock.conf
printf '[crio.image]\nshort_name_mode = "disabled"\n' > /etc/crio/crio.conf.d/11-names.conf
@BEFORE@
. /etc/os-release
if [ "$ID" = ubuntu ]; then # 24.04 denies unprivileged user namespaces, which Enroot and Pyxis need
  echo 'kernel.apparmor_restrict_unprivileged_userns = 0' > /etc/sysctl.d/90-oke-unprivileged-userns.conf
  sysctl --system > /dev/null 2>&1
elif command -v selinuxenabled > /dev/null && selinuxenabled; then
  setenforce 0
  sed -i 's/^SELINUX=.*/SELINUX=permissive/' /etc/selinux/config
fi
install_oke() {
  version=@VERSION@; minor=${version%.*}
  for base in file:///opt/oke-node-client-packages @REPOSITORY@; do
    printf 'Enabled: yes\nTypes: deb\nURIs: %s\nSuites: stable\nComponents: main\nTrusted: yes\n' \
      "$base/ubuntu-$VERSION_CODENAME/kubernetes-$minor" > /etc/apt/sources.list.d/oke-node-client.sources
    apt-get -o DPkg::Lock::Timeout=600 -y update
    apt-get -o DPkg::Lock::Timeout=600 -y install "oci-oke-node-all-$version" && return 0
  done
  return 1
}
join() {
  if command -v oke >/dev/null; then oke bootstrap @ARGUMENTS@
  elif [ -s /var/run/oke-init.sh ]; then bash /var/run/oke-init.sh @ARGUMENTS@
  else
    bash /etc/oke/oke-install.sh --apiserver-endpoint "$(cat /etc/oke/oke-apiserver)" \
      --kubelet-ca-cert "$(base64 -w 0 /etc/kubernetes/ca.crt)" @ARGUMENTS@
  fi
}
if ! command -v oke >/dev/null; then
  if [ "$ID" = ubuntu ]; then install_oke || say 'no bootstrap: oke is neither on the image nor to be installed'
  else
    # of node pools; a self-managed node of Oracle Linux has the script on its image
    curl -fsSL -H 'Authorization: Bearer Oracle' $imds/instance/metadata/oke_init_script | base64 -d \
      > /var/run/oke-init.sh
    [ -s /var/run/oke-init.sh ] || [ -e /etc/oke/oke-install.sh ] \
      || say 'no bootstrap: neither oke nor oke_init_script nor /etc/oke/oke-install.sh is there'
  fi
fi
joined=
for attempt in $(seq 20); do
  if join > /var/log/gpuops-join.log 2>&1; then joined=yes; say "joined in attempt $attempt"; break; fi
  say "attempt $attempt failed: $(tail -n 3 /var/log/gpuops-join.log | tr '\n' ' ')"
  sleep 15
done
[ "$joined" ] || say 'gave up'
[ "$ID" = ubuntu ] && systemctl restart systemd-networkd
@AFTER@
