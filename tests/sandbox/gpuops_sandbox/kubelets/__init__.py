# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real nodes of a sandbox: kubelet, containerd and runc in namespaces of their own (``sandbox up --kubelets N``)."""
