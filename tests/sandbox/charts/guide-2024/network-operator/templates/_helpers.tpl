{{- /*
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
*/}}
{{- define "select" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "labels" -}}
{{ include "select" . }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "fullname" -}}
{{- if .Values.operator.fullnameOverride }}{{ .Values.operator.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name }}{{ .Release.Name }}
{{- else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}
{{- define "part" -}}
image: {{ .image }}
repository: {{ .repository }}
version: {{ .version | quote }}
imagePullSecrets: []
{{- end }}
