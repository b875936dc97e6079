# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_worker_image
short_description: Import a node image into a compartment of OCI, once
version_added: 0.1.0
description:
- Imports an image from a pre-authenticated request of Object Storage, prints the progress, and adds the shapes to the
  image.
- An image from the same object is reused, and the import of an earlier run is continued. They are found by the freeform
  tag C(gpuops_rdma), a digest of the link without its secret part.
- With O(image), copies an image from another region by export and import.
- A link that Object Storage rejects is reported before anything is created. Its secret part is never shown.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.oci
options:
  compartment:
    description: OCID of the compartment of the image.
    type: str
    required: true
  url:
    description: Link to the image. Use one of O(url), O(index) and O(image).
    type: str
    default: ''
  index:
    description: C(worker-node-images.json) of oci-hpc-oke, to select the matching image from.
    type: path
  image:
    description: OCID of an image in another region. Use one of O(url), O(index) and O(image).
    type: str
    default: ''
  from_region:
    description: With O(image), the image's region.
    type: str
    default: ''
  bucket:
    description: With O(image), a bucket of Object Storage in O(from_region) for the export.
    type: str
    default: ''
  keep_object:
    description: With O(image), keep the exported object.
    type: bool
    default: false
  shape:
    description: Select an image for this shape.
    type: str
    default: ''
  os:
    description: Select an image with this operating system, for example V(Ubuntu).
    type: str
    default: ''
  os_version:
    description: Select an image with this version of the operating system, for example V(24.04).
    type: str
    default: ''
  kernel:
    description: Select an image with this kernel, for example V(6.8).
    type: str
    default: ''
  gpu_driver:
    description: Select an image with this driver, for example V(595).
    type: str
    default: ''
  cuda:
    description: Select an image with this CUDA version, for example V(13.2).
    type: str
    default: ''
  name:
    description: Display name. The default is the name of the object.
    type: str
    default: ''
  operating_system:
    description: Operating system that OCI shows for the image.
    type: str
    default: Ubuntu
  operating_system_version:
    description: Version of the operating system.
    type: str
    default: ''
  shapes:
    description: Shapes to add to the image. The default with O(index) is O(shape) and the shapes of the index. If OCI
      rejects one of the latter, the module warns.
    type: list
    elements: str
    default: []
  tags:
    description: Further freeform tags.
    type: dict
    default: {}
  timeout:
    description: Minutes to wait for the import, and for the export. 30 to 60 minutes are usual.
    type: int
    default: 90
"""

EXAMPLES = r"""
- name: Import the image for H100 nodes
  gpuops.rdma.oci_worker_image:
    compartment: ocid1.compartment.oc1..aaaa
    index: worker-node-images.json
    shape: BM.GPU.H100.8
    os_version: "24.04"
    kernel: "6.8"
  register: image

- name: Copy the same image to another region
  gpuops.rdma.oci_worker_image:
    compartment: ocid1.compartment.oc1..aaaa
    region: eu-frankfurt-1
    image: ocid1.image.oc1.uk-london-1.aaaa
    from_region: uk-london-1
    bucket: images
"""

RETURN = r"""
image_ocid:
  description: OCID of the image. Empty in check mode before an import.
  returned: always
  type: str
state:
  description: State of the resource.
  returned: always
  type: str
added_shapes:
  description: Shapes that this task added.
  returned: always
  type: list
  elements: str
"""
