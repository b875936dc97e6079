# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_worker_image
short_description: Import a node image into a compartment of OCI, once
version_added: 0.1.0
description:
- Imports from a pre-authenticated request of Object Storage, waits with the progress shown, and opens the image for its
  shapes.
- An image that came from the same object is used as it is; an import that an earlier run began is waited for. Known by
  the freeform tag C(gpuops_rdma), the digest of the link without its secret part.
- With O(image), brings an image from another region, by an export there and an import here.
- A link that Object Storage refuses is reported before anything is created. Its secret part is never shown.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.oci
options:
  compartment:
    description: OCID of the compartment that the image comes into.
    type: str
    required: true
  url:
    description: Link to the image. Either this, O(index) or O(image).
    type: str
    default: ''
  index:
    description: C(worker-node-images.json) of oci-hpc-oke, from which the one image that fits is picked.
    type: path
  image:
    description: OCID of an image in another region. Either this, O(url) or O(index).
    type: str
    default: ''
  from_region:
    description: With O(image), the region that it is in.
    type: str
    default: ''
  bucket:
    description: With O(image), a bucket of Object Storage in O(from_region) that it is exported to.
    type: str
    default: ''
  keep_object:
    description: With O(image), keep the exported object.
    type: bool
    default: false
  shape:
    description: Pick an image for this shape.
    type: str
    default: ''
  os:
    description: Pick an image of this system, e.g. V(Ubuntu).
    type: str
    default: ''
  os_version:
    description: Pick an image of this version of the system, e.g. V(24.04).
    type: str
    default: ''
  kernel:
    description: Pick an image with this kernel, e.g. V(6.8).
    type: str
    default: ''
  gpu_driver:
    description: Pick an image with this driver, e.g. V(595).
    type: str
    default: ''
  cuda:
    description: Pick an image with this CUDA, e.g. V(13.2).
    type: str
    default: ''
  name:
    description: Display name; that of the object by default.
    type: str
    default: ''
  operating_system:
    description: Operating system that OCI shows for the image.
    type: str
    default: Ubuntu
  operating_system_version:
    description: Its version.
    type: str
    default: ''
  shapes:
    description: Shapes that the image is opened for. By default, with O(index), O(shape) and those of the index; that
      OCI refuses one of the latter is a warning.
    type: list
    elements: str
    default: []
  tags:
    description: More freeform tags.
    type: dict
    default: {}
  timeout:
    description: Minutes to wait for the import, and for an export; 30 to 60 are usual.
    type: int
    default: 90
"""

EXAMPLES = r"""
- name: The image for H100 nodes
  gpuops.rdma.oci_worker_image:
    compartment: ocid1.compartment.oc1..aaaa
    index: worker-node-images.json
    shape: BM.GPU.H100.8
    os_version: "24.04"
    kernel: "6.8"
  register: image

- name: The same image in another region
  gpuops.rdma.oci_worker_image:
    compartment: ocid1.compartment.oc1..aaaa
    region: eu-frankfurt-1
    image: ocid1.image.oc1.uk-london-1.aaaa
    from_region: uk-london-1
    bucket: images
"""

RETURN = r"""
image_ocid:
  description: OCID of the image; empty in check mode before an import.
  returned: always
  type: str
state:
  description: Its state.
  returned: always
  type: str
added_shapes:
  description: Shapes that it was opened for now.
  returned: always
  type: list
  elements: str
"""
