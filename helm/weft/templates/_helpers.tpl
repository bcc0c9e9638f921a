{{/* Names, labels and parts that several templates use. */}}

{{- define "weft.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{- define "weft.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: weft
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: weft
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of one component: (dict "root" $ "name" "api") */}}
{{- define "weft.selector" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- define "weft.metadata" -}}
name: {{ include "weft.fullname" .root }}-{{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "weft.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component | default .name }}
{{- end -}}

{{/* Scheduler by the placement of a job, as JSON: those of the second kube-scheduler where it runs and no other is named. */}}
{{- define "weft.schedulers" -}}
{{- $own := ternary (dict "pack" "weft-pack" "spread" "weft-spread") dict .Values.scheduler.enabled -}}
{{- default $own .Values.learners.schedulers | toJson -}}
{{- end -}}

{{/* Host names of services, with {} for the service. */}}
{{- define "weft.hosts" -}}
{{ include "weft.fullname" . }}-{}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "weft.host" -}}
{{ include "weft.hosts" .root | replace "{}" .name }}
{{- end -}}

{{/* An image by its name in `images`: (dict "root" $ "name" "platform"). */}}
{{- define "weft.image" -}}
{{- include "weft.imageOf" (dict "root" .root "image" (index .root.Values.images .name) "versioned" (has .name (list "platform" "helper"))) -}}
{{- end -}}

{{- define "weft.imageOf" -}}
{{- $image := .image -}}
{{- $last := splitList "/" $image | last -}}
{{- if and .versioned (not (contains ":" $last)) (not (contains "@" $last)) -}}
{{- $image = printf "%s:%s" $image .root.Chart.AppVersion -}}
{{- end -}}
{{- if .root.Values.images.registry -}}
{{- $first := splitList "/" $image | first -}}
{{- if and (contains "/" $image) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- $image = trimPrefix (printf "%s/" $first) $image -}}
{{- end -}}
{{- $image = printf "%s/%s" (trimSuffix "/" .root.Values.images.registry) $image -}}
{{- end -}}
{{- $image -}}
{{- end -}}

{{- define "weft.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "weft.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.security.uid }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "weft.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The Secret of a value, or the one that the job `keys` makes: (dict "root" $ "given" "..." "name" "mongodb") */}}
{{- define "weft.secret" -}}
{{- .given | default (printf "%s-%s" (include "weft.fullname" .root) .name) -}}
{{- end -}}

{{/* Source of a projected volume. */}}
{{- define "weft.source" -}}
- secret:
    name: {{ .secret }}
    items:
      {{- range $key, $path := .items }}
      - {key: {{ $key }}, path: {{ $path }}}
      {{- end }}
{{- end -}}

{{/* Certificate of a component: the Secret of cert-manager, or of the job `keys`. */}}
{{- define "weft.tlsSecret" -}}
{{- if .root.Values.certManager.enabled -}}
{{ include "weft.fullname" .root }}-tls-{{ .name }}
{{- else -}}
{{ include "weft.fullname" .root }}-{{ .name }}
{{- end -}}
{{- end -}}

{{- define "weft.tlsVolume" -}}
- name: tls
  projected:
    defaultMode: 0440
    sources:
      {{- include "weft.source" (dict "secret" (include "weft.tlsSecret" .) "items" (dict "ca.crt" "ca.crt" "tls.crt" "tls.crt" "tls.key" "tls.key")) | nindent 6 }}
{{- end -}}

{{/* Names of the Secrets that the job `keys` writes. */}}
{{- define "weft.madeSecrets" -}}
{{- $names := list "api" "lcm" "guardian" "metrics" "worker" "prometheus" -}}
{{- if not .Values.keys.adminKey.existingSecret }}{{ $names = append $names "admin-key" }}{{ end -}}
{{- if .Values.etcd.enabled }}{{ $names = append $names "etcd" }}{{ end -}}
{{- if and .Values.mongodb.enabled (not .Values.mongodb.existingSecret) }}{{ $names = append $names "mongodb" }}{{ end -}}
{{- if and .Values.rabbitmq.enabled (not .Values.rabbitmq.existingSecret) }}{{ $names = append $names "rabbitmq" }}{{ end -}}
{{- if and .Values.s3.enabled (not .Values.s3.existingSecret) }}{{ $names = append $names "s3" }}{{ end -}}
{{- toJson $names -}}
{{- end -}}

{{/* Number of the metrics service's pods: the former shards run until their jobs have moved. */}}
{{- define "weft.metricsPods" -}}
{{ max (int .Values.metrics.shards) (int .Values.metrics.shardsBefore) }}
{{- end -}}

{{/* Settings of all services. */}}
{{- define "weft.env" -}}
{{- $root := .root -}}
WEFT_HOME: /var/lib/weft/home
WEFT_LOG_LEVEL: {{ $root.Values.logLevel }}
WEFT_SETTINGS_FILE: /var/lib/weft/home/settings.env
WEFT_TLS_AUTHORITY_FILE: /etc/weft/tls/ca.crt
WEFT_TLS_CERTIFICATE_FILE: /etc/weft/tls/tls.crt
WEFT_TLS_KEY_FILE: /etc/weft/tls/tls.key
WEFT_OBJECT_STORE: s3://{{ $root.Values.s3.bucket }}
WEFT_S3_REGION: {{ $root.Values.s3.region }}
{{- if $root.Values.s3.enabled }}
WEFT_S3_ENDPOINT: http://{{ include "weft.host" (dict "root" $root "name" "s3") }}:7070
{{- else if $root.Values.s3.external.endpoint }}
WEFT_S3_ENDPOINT: {{ $root.Values.s3.external.endpoint }}
{{- end }}
{{- if has .name (list "api" "lcm" "metrics") }}
WEFT_S3_CREDENTIALS_FILE: /var/lib/weft/home/s3-credentials
{{- end }}
WEFT_CLUSTER: kubernetes
{{- if eq .name "api" }}
WEFT_MASTER_KEY_FILE: /etc/weft/keys/master-key
{{- $hosts := list }}
{{- range list $root.Values.ingress $root.Values.gateway }}
{{- if and .enabled .host }}{{ $hosts = append $hosts .host }}{{ end }}
{{- end }}
{{- with $hosts }}
WEFT_DASHBOARD_HOSTS: {{ uniq . | join "," | quote }}
{{- end }}
{{- end }}
{{- if eq .name "metrics" }}
WEFT_METRICS_LEARNERS_LISTEN: 0.0.0.0:7002
WEFT_METRICS_LEARNERS_CERTIFICATE_FILE: /etc/weft/tls/tls.crt
WEFT_METRICS_LEARNERS_KEY_FILE: /etc/weft/tls/tls.key
WEFT_METRICS_SHARDS: {{ $root.Values.metrics.shards }}
{{- with $root.Values.metrics.shardsBefore }}
WEFT_METRICS_SHARDS_BEFORE: {{ . }}
{{- end }}
WEFT_METRICS_SHARD_ADDRESSES: tls:{{ include "weft.host" (dict "root" $root "name" "metrics-{}") }}:7000
{{- end }}
{{- if has .name (list "api" "lcm" "guardian") }}
WEFT_KUBERNETES_HELPER_IMAGE: {{ include "weft.image" (dict "root" $root "name" "helper") }}
{{- with $root.Values.images.learner }}
WEFT_KUBERNETES_LEARNER_IMAGE: {{ include "weft.imageOf" (dict "root" $root "image" .) }}
{{- end }}
{{- with $root.Values.images.frameworks }}
{{- $frameworks := dict }}
{{- range $framework, $image := . }}
{{- $_ := set $frameworks $framework (include "weft.imageOf" (dict "root" $root "image" $image)) }}
{{- end }}
WEFT_KUBERNETES_FRAMEWORK_IMAGES: {{ toJson $frameworks | squote }}
{{- end }}
{{- if kindIs "string" $root.Values.images.frameworkRegistry }}
WEFT_KUBERNETES_FRAMEWORK_REGISTRY: {{ $root.Values.images.frameworkRegistry | quote }}
{{- end }}
{{- end }}
{{- if has .name (list "api" "lcm" "guardian") }}
{{- with $root.Values.learners.devices }}
WEFT_KUBERNETES_DEVICES: {{ toJson . | squote }}
{{- end }}
{{- end }}
{{- if has .name (list "lcm" "guardian") }}
{{- with $root.Values.learners }}
WEFT_KUBERNETES_INSTALLATION: {{ include "weft.fullname" $root }}
WEFT_KUBERNETES_NAMESPACE_PREFIX: {{ .namespacePrefix }}
WEFT_KUBERNETES_LCM_ACCOUNT: {{ $root.Release.Namespace }}/{{ include "weft.fullname" $root }}-lcm
WEFT_KUBERNETES_GUARDIAN_ACCOUNT: {{ $root.Release.Namespace }}/{{ include "weft.fullname" $root }}-guardian
WEFT_KUBERNETES_UID_FIRST: {{ int64 .uids.first }}
WEFT_KUBERNETES_UID_COUNT: {{ int64 .uids.count }}
{{- with .images }}
WEFT_KUBERNETES_IMAGES: {{ toJson . | squote }}
{{- end }}
{{- if .pullSecret }}
WEFT_KUBERNETES_PULL_SECRET_FILE: /etc/weft/keys/registries.json
{{- end }}
{{- with .tenantPullSecrets }}
WEFT_KUBERNETES_PULL_SECRETS: {{ toJson . | squote }}
{{- end }}
WEFT_KUBERNETES_METRICS_ADDRESS: tls:{{ include "weft.host" (dict "root" $root "name" "metrics") }}:7002
WEFT_KUBERNETES_GANG: {{ .gang }}
{{- if eq .gang "kueue" }}
WEFT_KUBERNETES_KUEUE_QUEUE: {{ required "learners.kueueQueue: the name of a LocalQueue, with learners.gang kueue" .kueueQueue }}
{{- end }}
WEFT_KUBERNETES_GPU_RESOURCE: {{ .gpuResource }}
WEFT_KUBERNETES_GPU_LABEL: {{ .gpuLabel }}
{{- with .runtimeClass }}
WEFT_KUBERNETES_RUNTIME_CLASS: {{ . }}
{{- end }}
{{- with .scheduler }}
WEFT_KUBERNETES_SCHEDULER: {{ . }}
{{- end }}
WEFT_KUBERNETES_SCHEDULERS: {{ include "weft.schedulers" $root | squote }}
{{- with .priorityClasses }}
WEFT_KUBERNETES_PRIORITY_CLASSES: {{ toJson . | squote }}
{{- end }}
WEFT_KUBERNETES_HELPER_CPUS: {{ .helper.cpus | quote }}
WEFT_KUBERNETES_HELPER_MEMORY: {{ .helper.memory | quote }}
WEFT_KUBERNETES_SCRATCH: {{ .scratch | quote }}
WEFT_KUBERNETES_EGRESS: {{ toJson .egress | squote }}
{{- with .quota }}
WEFT_KUBERNETES_QUOTA: {{ toJson . | squote }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq .name "lcm") (eq $root.Values.guardian.launcher "job") }}
WEFT_KUBERNETES_GUARDIAN_LAUNCHER: job
WEFT_KUBERNETES_GUARDIAN_TEMPLATE: /etc/weft/guardian/pod.yaml
WEFT_KUBERNETES_GUARDIAN_NAMESPACE: {{ $root.Release.Namespace }}
{{- end }}
WEFT_POD_HOSTS: {{ include "weft.hosts" $root | quote }}
{{- if not $root.Values.etcd.enabled }}
WEFT_POD_ETCD: {{ required "etcd.external.address: host:port is needed where etcd.enabled is false" $root.Values.etcd.external.address | quote }}
{{- end }}
{{- end -}}
