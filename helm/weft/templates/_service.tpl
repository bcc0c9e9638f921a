{{/* The pod of one of Weft's services: (dict "root" $ "name" "api" "ports" (dict "rest" 8080)). */}}
{{- define "weft.servicePod" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $values := index $root.Values $name -}}
{{- $full := include "weft.fullname" $root -}}
{{- $module := ternary "services.lcm.worker" (printf "services.%s" $name) (eq $name "worker") -}}
{{- $launches := and (eq $name "lcm") (eq $root.Values.guardian.launcher "job") -}}
{{- $env := merge (dict) (deepCopy $values.env) (include "weft.env" . | fromYaml) -}}
metadata:
  labels:
    {{- include "weft.selector" . | nindent 4 }}
    {{- with $root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if $launches }}
  # It reads the template once, at its start.
  annotations:
    weft.dev/guardian-template: {{ include "weft.servicePod" (dict "root" $root "name" "guardian" "ports" (dict "inner" 7000)) | sha256sum }}
  {{- end }}
spec:
  serviceAccountName: {{ $full }}-{{ ternary $name "services" (has $name (list "lcm" "guardian")) }}
  automountServiceAccountToken: {{ has $name (list "lcm" "guardian") }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  {{- include "weft.scheduling" . | nindent 2 }}
  {{- include "weft.pullSecrets" $root | nindent 2 }}
  securityContext:
    {{- include "weft.podSecurity" $root | nindent 4 }}
  initContainers:
    - name: home
      image: {{ include "weft.image" (dict "root" $root "name" "platform") }}
      imagePullPolicy: {{ $root.Values.images.pullPolicy }}
      command: [python, -m, services.local.pod_home, {{ $name }}]
      securityContext:
        {{- include "weft.containerSecurity" $root | nindent 8 }}
      resources:
        requests: {cpu: 50m, memory: 96Mi}
        limits: {memory: 256Mi}
      env: &env
        {{- range $variable, $value := $env }}
        {{- /* As text, a number of seven digits or more would have an exponent. */}}
        - {name: {{ $variable }}, value: {{ ternary (toJson $value) (toString $value) (kindIs "float64" $value) | quote }}}
        {{- end }}
        {{- if eq $name "metrics" }}
        - {name: WEFT_POD_METRICS_FOLDER, value: /data/metrics}
        - name: WEFT_METRICS_SHARD
          valueFrom:
            fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}
        {{- end }}
      volumeMounts: &mounts
        - {name: home, mountPath: /var/lib/weft}
        - {name: tmp, mountPath: /tmp}
        - {name: keys, mountPath: /etc/weft/keys, readOnly: true}
        - {name: tls, mountPath: /etc/weft/tls, readOnly: true}
        - {name: stores, mountPath: /etc/weft/stores, readOnly: true}
        {{- if $launches }}
        - {name: guardian, mountPath: /etc/weft/guardian, readOnly: true}
        {{- end }}
        {{- if eq $name "metrics" }}
        - {name: data, mountPath: /data}
        {{- end }}
  containers:
    - name: {{ $name }}
      image: {{ include "weft.image" (dict "root" $root "name" "platform") }}
      imagePullPolicy: {{ $root.Values.images.pullPolicy }}
      command: [python, -m, {{ $module }}]
      securityContext:
        {{- include "weft.containerSecurity" $root | nindent 8 }}
      env: *env
      ports:
        {{- range $port, $number := .ports }}
        - {name: {{ $port }}, containerPort: {{ $number }}}
        {{- end }}
        - {name: operations, containerPort: 7001}
      # Commands, because the operations address demands a client certificate, which the kubelet has not.
      startupProbe:
        exec: {command: [python, -m, services.local.containers, alive]}
        periodSeconds: 5
        timeoutSeconds: 10
        failureThreshold: 60
      # Not whether it is ready: while a store is away a service answers with errors that say so.
      readinessProbe:
        exec: {command: [python, -m, services.local.containers, serving]}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 3
      livenessProbe:
        exec: {command: [python, -m, services.local.containers, alive]}
        periodSeconds: 30
        timeoutSeconds: 20
        failureThreshold: 4
      {{- if has $name (list "api" "lcm" "guardian") }}
      # New connections go to other pods before this one ends.
      lifecycle:
        preStop: {sleep: {seconds: 5}}
      {{- end }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      volumeMounts: *mounts
  volumes:
    - name: home
      emptyDir: {sizeLimit: {{ $values.scratch }}}
    - name: tmp
      emptyDir: {sizeLimit: {{ $values.scratch }}}
    - name: keys
      projected:
        defaultMode: 0440
        sources:
          {{- $items := dict "identity" "identity" "public-keys.json" "public-keys.json" }}
          {{- if eq $name "guardian" }}{{ $_ := set $items "learner-tokens" "learner-tokens" }}{{ end }}
          {{- if and (eq $name "api") (not $root.Values.keys.masterKey.existingSecret) }}{{ $_ := set $items "master-key" "master-key" }}{{ end }}
          {{- include "weft.source" (dict "secret" (printf "%s-%s" $full $name) "items" $items) | nindent 10 }}
          {{- include "weft.source" (dict "secret" (include "weft.secret" (dict "root" $root "given" $root.Values.keys.adminKey.existingSecret "name" "admin-key")) "items" (dict "key" "admin-key")) | nindent 10 }}
          {{- if and (eq $name "api") $root.Values.keys.masterKey.existingSecret }}
          {{- include "weft.source" (dict "secret" $root.Values.keys.masterKey.existingSecret "items" (dict "master-key" "master-key")) | nindent 10 }}
          {{- end }}
          {{- if and (has $name (list "lcm" "guardian")) $root.Values.learners.pullSecret }}
          {{- include "weft.source" (dict "secret" $root.Values.learners.pullSecret "items" (dict ".dockerconfigjson" "registries.json")) | nindent 10 }}
          {{- end }}
    {{- if $launches }}
    - name: guardian
      configMap: {name: {{ $full }}-guardian}
    {{- end }}
    {{- include "weft.tlsVolume" . | nindent 4 }}
    - name: stores
      projected:
        defaultMode: 0440
        sources:
          {{- if has $name (list "api" "lcm" "guardian" "metrics") }}
          {{- include "weft.mongodbSource" $root | nindent 10 }}
          {{- end }}
          {{- if has $name (list "api" "lcm" "worker") }}
          {{- if $root.Values.rabbitmq.enabled }}
          {{- include "weft.source" (dict "secret" (include "weft.secret" (dict "root" $root "given" $root.Values.rabbitmq.existingSecret "name" "rabbitmq")) "items" (dict "password" "rabbitmq-password")) | nindent 10 }}
          {{- else }}
          {{- include "weft.source" (dict "secret" (required "rabbitmq.external.existingSecret: a Secret with the key uri is needed where rabbitmq.enabled is false" $root.Values.rabbitmq.external.existingSecret) "items" (dict "uri" "rabbitmq-uri")) | nindent 10 }}
          {{- end }}
          {{- end }}
          {{- if has $name (list "api" "lcm" "metrics") }}
          {{- $given := $root.Values.s3.existingSecret }}
          {{- if not $root.Values.s3.enabled }}
          {{- $given = required "s3.existingSecret: a Secret with the keys access-key and secret-key is needed where s3.enabled is false" $given }}
          {{- end }}
          {{- include "weft.source" (dict "secret" (include "weft.secret" (dict "root" $root "given" $given "name" "s3")) "items" (dict "access-key" "s3-access-key" "secret-key" "s3-secret-key")) | nindent 10 }}
          {{- end }}
{{- end -}}

{{/* Source of a projected volume: how MongoDB is reached. */}}
{{- define "weft.mongodbSource" -}}
{{- if .Values.mongodb.enabled }}
{{- include "weft.source" (dict "secret" (include "weft.secret" (dict "root" . "given" .Values.mongodb.existingSecret "name" "mongodb")) "items" (dict "password" "mongodb-password")) }}
{{- else }}
{{- include "weft.source" (dict "secret" (required "mongodb.external.existingSecret: a Secret with the key uri is needed where mongodb.enabled is false" .Values.mongodb.external.existingSecret) "items" (dict "uri" "mongodb-uri")) }}
{{- end }}
{{- end -}}

{{/* On which nodes any pod of the release runs, and its priority. */}}
{{- define "weft.nodes" -}}
{{- with .Values.scheduling }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- range list "not-ready" "unreachable" }}
  - {key: node.kubernetes.io/{{ . }}, operator: Exists, effect: NoExecute, tolerationSeconds: {{ $.Values.scheduling.lostNodeSeconds }}}
  {{- end }}
  {{- with .tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Where a pod of a service or store runs: (dict "root" $ "name" "api"). */}}
{{- define "weft.scheduling" -}}
{{ include "weft.nodes" .root }}
{{- with .root.Values.scheduling }}
{{- if .spread }}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "weft.selector" $ | nindent 8 }}
  {{- end }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "weft.selector" $ | nindent 14 }}
{{- end }}
{{- end }}
{{- end -}}
